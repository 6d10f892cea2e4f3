# SPDX-License-Identifier: Apache-2.0
"""Evidence of control against control, and of rehearsals."""
