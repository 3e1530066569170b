"""numus beside its peers: `python -m bench` prints the table."""
