# SPDX-License-Identifier: Apache-2.0
"""Starts arms, packets, legs and rehearsals on leased cards."""
