"""What packets carry besides messages, as JSON and numbers: options, statistics, errors, answers."""
