"""``python -m echo``."""

import sys

from echo.cli.main import main

sys.exit(main())
