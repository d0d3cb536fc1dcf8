"""Mutation testing with cosmic-ray: `make mutation` changes the code in one place at a time and runs the tests.

A mutant that no test detects survives. cosmic-ray defines the mutants and its session file stores the results, so that
`cr-report` and `cr-html` can show them. Starting an interpreter for each mutant would take most of the time. Instead,
one process imports what the tests need and is forked for each mutant. The tests that execute the changed line run
first, fastest tests first, up to the first failure. A surviving mutant must also pass all other tests of its target.

An interrupted run continues with the remaining mutants. The results of a module are discarded if it has changed.
"""
