# SPDX-License-Identifier: Apache-2.0
"""What commands processes and cards: discovery, leases, supervision, and the proof that a card is idle."""
