"""What benches measured: rows, means with intervals, the worst attack, matched accuracy."""
