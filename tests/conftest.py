"""For all tests: one thread each. They run side by side, and threads that wait for each other only cost."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
