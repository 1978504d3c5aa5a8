"""One child process: how it is started and watched, its messages, what it runs, and what it inherits."""
