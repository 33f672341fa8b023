"""Known mistakes, each as wrong lines in the place of right ones, and what
finds them in other code: `attnref.check` and the command of that name."""
