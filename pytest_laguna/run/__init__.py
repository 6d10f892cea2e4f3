# SPDX-License-Identifier: Apache-2.0
"""Starting things on leased cards: arms, packets, legs, rehearsals."""
