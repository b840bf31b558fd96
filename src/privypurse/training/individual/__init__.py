"""What each person really spent: norms between steps, accounts, and runs that stop each person in time."""
