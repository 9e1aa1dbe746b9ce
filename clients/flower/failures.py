"""Texts of clients' failures: short, and in letters that can be sent to the server."""

from collections.abc import Callable

from flwr.app import Context, Message

from fedcel.errors import FailedError, describe_unforeseen, shorten_text


def limit_failure(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Cut the text of a failure; a mod of Flower's around everything that a ClientApp does.

    Flower sends an error's text as it is: megabytes travel, and one that cannot be encoded ends
    the process in the place of an answer, as does an exit that a client's code asks for. The
    traceback stays, for the node's own log.

    Args:
        message: For the ClientApp.
        context: The node's.
        call_next: The ClientApp's function.

    Returns:
        Its reply.

    Raises:
        FailedError: In the place of an error whose text is long or cannot be sent, or of an exit.
        Exception: Any other, as it is.
    """
    try:
        return call_next(message, context)
    except (Exception, SystemExit) as error:
        text = shorten_text(str(error))
        if isinstance(error, Exception) and text == str(error):
            raise
        reason = shorten_text(describe_unforeseen(error))
        raise FailedError(reason).with_traceback(error.__traceback__) from None
