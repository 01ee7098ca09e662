"""The one exception whose message is written for the user: the CLI prints it on one line and exits with code 2."""


class UserError(Exception):
    """Bad input: the message says what is wrong, where, and what to do about it."""


class DivergedError(UserError):
    """Training left the finite numbers: a user's learning rate, as a rule; a live learner undoes the tick."""


class HeldError(UserError):
    """Another process works on it. A learner that is watched ends with this code then: it may take over later."""

    code = 75
