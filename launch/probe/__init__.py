"""A first look at a recipe's policy before a run: does it act, in which form, and what should be changed?"""
