"""The proof: what GUARANTEES are worth, shown by running them. `python -m tests.proof` prints the table.

- `ledger`: what was promised, as a program using aiodq could know it.
- `world`: a simulated machine on which a workload runs and leaves a trace with such promises in it.
- `workloads`: the programs. A new feature adds its own with `@workload`.
- `oracle`: opens what a power cut left and says what is wrong with it.
- `explore`: every moment of a trace, many states each, power cuts during recovery among them.
- `mutants`: aiodq with one safeguard taken away; the exploration has to notice each.
- `guarantees`, `table`: the rest of the suite by guarantee, and what all of it came to.
"""
