"""What benches measured: records, means with intervals, the worst attack, matched accuracy."""
