# SPDX-License-Identifier: Apache-2.0
"""Runs inside arm processes: upstream vLLM on a lane."""
