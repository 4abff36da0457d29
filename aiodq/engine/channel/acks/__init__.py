"""How messages are settled: acked, requeued or given up, and when that is durable."""
