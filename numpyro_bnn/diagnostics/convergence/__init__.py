"""R-hat and effective sample size of all scalars at once, equal to ArviZ's, in bounded memory."""
