"""Files that run between a message and its reply: each is one that a reader opens."""

from tests.bench.message_files import record_files, record_query_files

MOST_FILES = 18
"""Files of the core and of the clients; today as many run."""


MOST_QUERY_FILES = 10


def test_few_files_answer_a_train_message() -> None:
    """A node's second round, in which all that a process keeps is there."""
    names = record_files().keys() - {"fedcel/flower_messages.py"}  # of the recording alone
    assert "fedcel/federation/local_steps.py" in names
    assert len(names) <= MOST_FILES, sorted(names)


def test_few_files_answer_a_private_query() -> None:
    """From the HTTP request to the noisy answer, once nothing has to be loaded."""
    names = record_query_files().keys()
    assert "clients/service/private_answers.py" in names
    assert len(names) <= MOST_QUERY_FILES, sorted(names)
