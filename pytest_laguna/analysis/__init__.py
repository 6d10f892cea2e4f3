# SPDX-License-Identifier: Apache-2.0
"""Pure functions from evidence to proofs and verdicts: no torch, no pytest, no subprocess, no clock."""
