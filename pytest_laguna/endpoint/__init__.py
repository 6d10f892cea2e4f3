# SPDX-License-Identifier: Apache-2.0
"""Gate 3's legs: a fresh server, one pass of the suite, and their record; imports neither torch nor vLLM."""
