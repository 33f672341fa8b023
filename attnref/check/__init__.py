"""Known mistakes, each as wrong lines in the place of right ones."""
