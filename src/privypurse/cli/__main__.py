import sys

from privypurse.cli import main

sys.exit(main())
