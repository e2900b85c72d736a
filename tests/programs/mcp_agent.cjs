// An agent whose tools come by the official MCP client; NODE_PATH names the folder of its package.
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { readFileSync } = require("node:fs");

const headers = { Authorization: `Bearer ${process.env.OPENAI_API_KEY}` };

async function ask(messages, tools) {
  const body = JSON.stringify({ model: process.env.XP_MODEL, messages, tools });
  const answer = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { ...headers, "Content-Type": "application/json" },
    body,
  });
  return (await answer.json()).choices[0].message;
}

async function main() {
  const client = new Client({ name: "agent", version: "1" });
  const transport = new StreamableHTTPClientTransport(new URL(process.env.XP_TOOLS_URL), {
    requestInit: { headers },
  });
  await client.connect(transport);
  const offered = (await client.listTools()).tools.map(({ name, inputSchema }) => ({
    type: "function",
    function: { name, parameters: inputSchema },
  }));
  const messages = [{ role: "user", content: readFileSync(process.argv[2], "utf8") }];
  let message;
  while ((message = await ask(messages, offered)).tool_calls) {
    messages.push(message);
    for (const call of message.tool_calls) {
      const { name } = call.function;
      const result = await client.callTool({ name, arguments: JSON.parse(call.function.arguments) });
      messages.push({ role: "tool", tool_call_id: call.id, content: result.content[0].text });
    }
  }
  await transport.terminateSession();
  await client.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
