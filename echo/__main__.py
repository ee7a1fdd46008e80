"""``python -m echo``."""

import sys

from echo.cli import main

sys.exit(main())
