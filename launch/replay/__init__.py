"""What other settings would have made of a run's record: groups, masks, advantages and weights, without a model."""
