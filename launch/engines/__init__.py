"""What runs a recipe: `recipe.engine` -> module, each a `launch.engines.base.Engine`."""

ENGINES = {
    "embedded": "launch.engines.embedded",
    "slime": "launch.engines.slime",
    "slime_cpu": "launch.engines.slime_cpu",
}
