"""What a recipe must be like, rule by rule; `recipes.checks` and `recipes.parallelism` put them together."""
