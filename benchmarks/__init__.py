"""Side by side with the peers: each module is one command and prints one table."""
