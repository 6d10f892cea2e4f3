# SPDX-License-Identifier: Apache-2.0
"""Noise of the timing rules, from control against control."""
