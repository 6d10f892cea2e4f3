# SPDX-License-Identifier: Apache-2.0
"""Opening and sealing an attempt."""
