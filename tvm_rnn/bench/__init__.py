"""Benchmarks that users can run: suites of networks, our modules and their peers timed side by side, tables of results.

In: a suite's name, or a module. Out: records of medians, and tables and pictures made of them. Order of data:
suites/ says what is measured, measure/ how and against which limit, peers/ against whom, run/ measures and reports.
"""
