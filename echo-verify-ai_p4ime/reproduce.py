"""Runs the step again in which echo's plan and the stock graph differed: python reproduce.py"""
import os
import sys
from pathlib import Path

os.environ.update({'ECHO_CACHE_DIR': '/tmp/pytest-of-root/pytest-461/test_one_product_for_many_coun0'})
from echo.runtime.verify_report import replay

sys.exit(replay(Path(__file__).parent))
