"""A package and no namespace, since swesmith installs one of the same name, which would come before a namespace."""
