# SPDX-License-Identifier: Apache-2.0
"""Opens and seals an attempt."""
