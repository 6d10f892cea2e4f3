# SPDX-License-Identifier: Apache-2.0
"""Commands processes and cards: discovery, leases, supervision, and the proof of an idle card."""
