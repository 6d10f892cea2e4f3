# SPDX-License-Identifier: Apache-2.0
"""Children that are hard to end, controllers that die, and an observer of both; for the tests and the benchmark."""
