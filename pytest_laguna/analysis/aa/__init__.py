# SPDX-License-Identifier: Apache-2.0
"""The noise of the timing rules, from control against control."""
