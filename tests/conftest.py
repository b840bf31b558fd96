"""For all tests: one thread each. Tests run in parallel, and threads that wait for each other cost more than they do."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
