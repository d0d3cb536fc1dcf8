"""The tools are no part of the package: they are found beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

# The calibration needs the error budget of the verdict engine.
if not (Path(__file__).parents[2] / "src" / "headtohead" / "verdict" / "prediction.py").is_file():
    collect_ignore = ["test_calibration.py", "test_false_verdicts.py"]
