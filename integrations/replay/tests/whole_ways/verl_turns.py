"""What the agent loop of verl is given: a tool, and a parser that finds a call of it in any text.

The small model writes no calls. So its turns end with one that it did not write; what follows is
verl's: the tool is called, and its answer becomes tokens of the next turn's prompt.
"""

import json
from typing import Any

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import function_tool


@function_tool
def count(text: str) -> str:
    """Count the letters of a text.

    Args:
        text: What to count.
    """
    return f"It has {len(text)} letters."


@ToolParser.register("always")
class Always(ToolParser):
    async def extract_tool_calls(
        self, responses_ids: list[int], tools: Any = None
    ) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids)
        return text, [FunctionCall(name="count", arguments=json.dumps({"text": text}))]
