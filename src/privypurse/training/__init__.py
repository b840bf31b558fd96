"""Private training: the ordinary PyTorch loop, with everyone's own rate and clip norm. Needs torch."""
