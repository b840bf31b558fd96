"""Tables of the papers and beyond them, made with Privy Purse: one harness for data, choice, training and results.

Not part of the installed package. `python -m reproductions --help` says what there is.
"""
