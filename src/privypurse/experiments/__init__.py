"""The tables and figures of the papers, each repeated from one small file."""
