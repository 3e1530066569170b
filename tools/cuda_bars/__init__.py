"""What was asked of numus on one H200, row by row: `python -m tools.cuda_bars`."""
