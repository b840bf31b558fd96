"""`python -m privypurse` is the command."""

import sys

from privypurse.cli import main

sys.exit(main())
