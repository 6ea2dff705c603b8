// @ts-check
// Server-sent events from a stream of bytes. EventSource can't be used: it sends no Authorization header.

/** The longest line, in characters. A lock's JSON has at most some hundred thousand. */
const LINE_MAX = 1 << 24;

/**
 * Reads events until the stream ends. Event ids and `retry` are ignored: the service sends none.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {(event: string, data: string) => void} onEvent
 * @param {() => void} onBytes whenever something has arrived, comments too
 */
export async function readEvents(body, onEvent, onBytes) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  let event = 'message';
  /** @type {string[]} */
  let data = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    onBytes();
    const text = rest + decoder.decode(value, { stream: true });
    let from = 0;
    for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', from)) {
      const line = text.slice(from, text[end - 1] === '\r' && end > from ? end - 1 : end);
      from = end + 1;
      if (line === '') {
        if (data.length > 0) onEvent(event, data.join('\n'));
        event = 'message';
        data = [];
      } else if (line.startsWith('data:')) {
        data.push(line.slice(line[5] === ' ' ? 6 : 5));
      } else if (line.startsWith('event:')) {
        event = line.slice(line[6] === ' ' ? 7 : 6);
      }
    }
    rest = text.slice(from);
    if (rest.length > LINE_MAX) throw new Error('the stream has a line without an end');
  }
}
