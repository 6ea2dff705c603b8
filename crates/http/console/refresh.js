// @ts-check
// Calls that are repeated while a view is shown.

import { asProblem, isAbort } from './api.js';

/** The least time between a call and one that was wished for meanwhile, in milliseconds: a busy lock changes many times a second. */
const WISH_MS = 250;

/**
 * Calls at once, and again `everyMs` after each answer, until the signal ends it. Not while the page is hidden.
 *
 * @template T
 * @param {number} everyMs milliseconds
 * @param {AbortSignal} signal
 * @param {(signal: AbortSignal) => Promise<T>} call
 * @param {(answer: T) => void} onAnswer
 * @param {(problem: import('./api.js').Problem) => void} onProblem
 * @returns {() => void} calls now; several wishes during a call make one more
 */
export function refresh(everyMs, signal, call, onAnswer, onProblem) {
  let timer = 0;
  let isCalling = false;
  let isWanted = false;
  const run = async () => {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (isCalling) {
      isWanted = true;
      return;
    }
    isCalling = true;
    isWanted = false;
    let wait = everyMs;
    try {
      const answer = await call(signal);
      if (!signal.aborted) onAnswer(answer);
    } catch (error) {
      if (!isAbort(error) && !signal.aborted) {
        const problem = asProblem(error);
        onProblem(problem);
        // Without permission the answer stays the same for some time.
        if (problem.status === 401 || problem.status === 403) wait = Math.max(wait, 15_000);
      }
    }
    isCalling = false;
    if (!signal.aborted) timer = setTimeout(tick, isWanted ? WISH_MS : wait);
  };
  const tick = () => {
    if (document.hidden) return;
    void run();
  };
  const shown = () => document.hidden || void run();
  document.addEventListener('visibilitychange', shown);
  signal.addEventListener('abort', () => {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', shown);
  });
  void run();
  return run;
}
