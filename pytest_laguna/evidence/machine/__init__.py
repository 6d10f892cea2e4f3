# SPDX-License-Identifier: Apache-2.0
"""Evidence of cards, leases, host and processes."""
