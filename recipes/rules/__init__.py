"""What SLiME, Megatron and SGLang refuse of a recipe; `trainer.RULES` puts it together."""
