"""Results of runs and benches: records and their files, intervals, worst attack, comparison."""
