# SPDX-License-Identifier: Apache-2.0
"""Rules over cards, leases, host and processes."""
